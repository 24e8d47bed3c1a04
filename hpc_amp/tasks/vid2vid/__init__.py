"""vid2vid (Wang et al., 2018): video from sequences of label maps, whose frames follow each
other."""
