"""World-consistent vid2vid (Mallya et al., 2020): video from sequences of label maps, in which
places that are seen again look as before."""
