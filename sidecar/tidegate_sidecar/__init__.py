"""The data plane: edge and pod stages in front of one engine."""
