"""What an encoder does to data whose best possible answer is known: the class-conditional Gaussian of SynBench."""
