"""The jobs: what users call on a pipeline to find policies and to make more of them."""
