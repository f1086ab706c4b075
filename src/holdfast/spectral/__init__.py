"""The mathematics of spectral scores: graphs, their eigenvalues and resistances, and what these say of edges and samples."""
