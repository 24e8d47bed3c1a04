"""FUNIT (Liu et al., 2019): translation of images into a class that a few images show."""
