"""What the whole engine shares: records, errors, state files, paths, sampling."""
