"""hf_dataset://: datasets of Hugging Face."""

from __future__ import annotations

from .hf_model import HuggingFace


class HuggingFaceDataset(HuggingFace):
    name, kind = "hf_dataset", "dataset"


SCHEME = HuggingFaceDataset()
