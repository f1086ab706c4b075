"""SynBench without its report: a Gaussian mixture, its robust Bayes rules, and how much of it an encoder keeps."""
