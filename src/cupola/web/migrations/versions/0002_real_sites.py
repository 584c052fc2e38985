"""real sites"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("study", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("real", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch_op.add_column(sa.Column("roster", sa.Text(), nullable=True))
    with op.batch_alter_table("invitation", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("role", sa.String(length=12), nullable=False, server_default="site")
        )
        batch_op.add_column(sa.Column("public", sa.Text(), nullable=True))
        batch_op.add_column(
            sa.Column("ready", sa.Boolean(), nullable=False, server_default=sa.false())
        )


def downgrade() -> None:
    with op.batch_alter_table("invitation", schema=None) as batch_op:
        batch_op.drop_column("ready")
        batch_op.drop_column("public")
        batch_op.drop_column("role")
    with op.batch_alter_table("study", schema=None) as batch_op:
        batch_op.drop_column("roster")
        batch_op.drop_column("real")
