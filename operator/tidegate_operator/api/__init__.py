"""The API tidegate.io/v1alpha1: the one source of the CRDs and docs/api.md."""
