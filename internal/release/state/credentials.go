package state

import "slices"

// PushCredential is a push credential with a name.
type PushCredential struct {
	Name string `json:"name"`
	// Secret is the user's Secret with the credential. Empty: prepare generates one.
	Secret string `json:"secret,omitempty"`
	// Repositories are those that it may write, and all below them. Empty: all.
	Repositories []string `json:"repositories,omitempty"`
}

// PushCredentials are the named push credentials of a release. The zero value has none.
type PushCredentials struct {
	Named []PushCredential `json:"named,omitempty"`
	// Removed are the names of generated credentials that the registry no longer accepts, and whose Secrets
	// finish deletes.
	Removed []string `json:"removed,omitempty"`
}

// Find returns the credential with the name, or nil.
func (p PushCredentials) Find(name string) *PushCredential {
	for i := range p.Named {
		if p.Named[i].Name == name {
			return &p.Named[i]
		}
	}
	return nil
}

// Generated returns the names of the credentials that are not copies.
func (p PushCredentials) Generated() (found []string) {
	for _, c := range p.Named {
		if c.Secret == "" {
			found = append(found, c.Name)
		}
	}
	return found
}

// Replace returns the wanted credentials. Generated ones that are no longer wanted are removed.
func (p PushCredentials) Replace(wanted []PushCredential) PushCredentials {
	next := PushCredentials{Named: wanted}
	kept := next.Generated()
	for _, name := range append(p.Generated(), p.Removed...) {
		if !slices.Contains(kept, name) {
			next.Removed = append(next.Removed, name)
		}
	}
	slices.Sort(next.Removed)
	next.Removed = slices.Compact(next.Removed)
	return next
}
