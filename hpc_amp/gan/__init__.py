"""Parts that conditional generators of images share: data, layers, losses, metrics."""
