"""What a person saves once in Prefect: one block per platform, and tokens. Importing it registers them all."""

from prefect_tao.blocks.brev import TaoBrev
from prefect_tao.blocks.docker import TaoDocker
from prefect_tao.blocks.kubernetes import TaoKubernetes
from prefect_tao.blocks.lepton import TaoLepton
from prefect_tao.blocks.process import TaoProcess
from prefect_tao.blocks.slurm import TaoSlurm
from prefect_tao.blocks.tokens import TaoHuggingFaceToken, TaoNgcKey

__all__ = [
    "TaoBrev",
    "TaoDocker",
    "TaoHuggingFaceToken",
    "TaoKubernetes",
    "TaoLepton",
    "TaoNgcKey",
    "TaoProcess",
    "TaoSlurm",
]
