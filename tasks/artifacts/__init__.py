"""The pages, tables and pictures that people find in the Prefect UI."""
