package hook

// Keys of Secrets that the hook makes, for those who look at them.
const (
	// KeyAuthority is the trust bundle of a certificate's Secret.
	KeyAuthority = keyAuthority
	// KeyHtpasswd is what the registry checks passwords with.
	KeyHtpasswd = keyHtpasswd
)
