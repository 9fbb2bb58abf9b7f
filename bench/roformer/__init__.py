"""The RoFormer paper at a size that two CPU cores train in minutes (Su et al., arXiv 2104.09864)."""
