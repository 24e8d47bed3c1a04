"""Image data: found, downloaded, decoded or synthetic; ordered; augmented; put on the device."""
