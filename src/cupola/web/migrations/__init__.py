"""Migrations of the database, in order; carried out when the application starts."""
