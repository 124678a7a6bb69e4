"""What the world would think of a message: SPF, DKIM, DMARC, and what its markup promises."""
