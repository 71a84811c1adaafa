"""The kinds of locations that are no plain path."""

LOCAL_SCHEMES = ("file", "lustre", "slurm")
TOOL_SCHEMES = ("hf_model", "hf_dataset", "ngc")
