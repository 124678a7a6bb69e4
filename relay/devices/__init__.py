"""The device inbox: opaque blobs, kept until the device that they are for has acknowledged them."""
