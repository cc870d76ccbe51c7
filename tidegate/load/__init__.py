"""The multi-tenant load generator and its report."""
