"""Every server on the hub: what kernels say passes through ports that all accounts can reach."""

c = get_config()  # noqa: F821
c.KernelManager.transport_encryption = "required"
