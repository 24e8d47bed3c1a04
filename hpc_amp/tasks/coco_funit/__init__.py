"""COCO-FUNIT (Saito et al., 2020): FUNIT with a style that depends on the content image."""
