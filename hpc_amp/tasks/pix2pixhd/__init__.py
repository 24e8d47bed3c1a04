"""pix2pixHD (Wang et al., 2018): large images from label maps or other images, from coarse to
fine."""
