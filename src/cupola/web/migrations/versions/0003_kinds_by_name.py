"""kinds of analysis by 'module:Class', which are longer"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite keeps texts of any length; to say so it would make the table anew, and with the old one
    # would go all rows that refer to it. New databases begin with the longer column (0001).
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("study", "kind", existing_type=sa.String(20), type_=sa.String(200))


def downgrade() -> None:
    """Nothing: studies may have kinds that would not fit."""
