"""Few-shot vid2vid (Wang et al., 2019): video from sequences of label maps, which looks like a few
reference images."""
