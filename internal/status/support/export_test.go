package support

// Unmasked returns options with which nothing is masked.
func (o Options) Unmasked() Options {
	o.unmasked = true
	return o
}
