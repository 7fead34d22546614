"""Tenants as the operator declares them: a TOML file with names, limits and hashed keys, and the commands that edit it."""

from __future__ import annotations

from radixserve.tenants.file import TenantsFile, TenantsFileError, load_tenants

__all__ = ["TenantsFile", "TenantsFileError", "load_tenants"]
