"""`python -m prefect_tao.cli` is `prefect-tao`."""

from prefect_tao.cli import main

if __name__ == "__main__":
    main()
