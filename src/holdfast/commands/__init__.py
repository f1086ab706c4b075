"""One public function for each verb, for the command line and for Python alike."""
