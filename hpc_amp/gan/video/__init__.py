"""Video: sequences of frames with what they are made from, known flow, and warping."""
