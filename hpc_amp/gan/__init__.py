"""Parts of conditional GANs: layers, discriminators, losses, feature networks, metrics, data.

The tasks of hpc-amp are made of them, and so can be a task of your own (docs/gan-own.md).
"""
