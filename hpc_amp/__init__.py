"""hpc-amp: one YAML file in, a multi-node mixed-precision PyTorch run out."""

__version__ = "0.1.0"
