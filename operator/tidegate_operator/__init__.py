"""The control plane: custom resources in, engines and policy out, status back."""
