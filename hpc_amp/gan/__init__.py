"""Parts of conditional GANs: layers, discriminators, losses, feature networks, metrics, data.

The tasks of hpc-amp consist of them, and you can build a task of your own from them
(docs/gan-own.md).
"""
