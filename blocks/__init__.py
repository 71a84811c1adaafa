"""What a person saves once in Prefect: one block per platform. Importing this package registers them all."""

from prefect_tao.blocks.process import TaoProcess

__all__ = ["TaoProcess"]
