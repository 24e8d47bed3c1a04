"""Image data: found, downloaded, decoded or made up; ordered; augmented; put on the device."""
