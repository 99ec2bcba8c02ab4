package config

import (
	"regexp"
	"strconv"
	"strings"
)

// path names a value by the keys that lead to it, such as
// providers.stripe.timeout. The whole file is the empty path.
type path []string

var plainKey = regexp.MustCompile(`^[\w-]+$`)

func (p path) child(name string) path {
	return append(p[:len(p):len(p)], name)
}

// String quotes unusual keys, so that different paths never look alike.
func (p path) String() string {
	keys := make([]string, len(p))
	for i, key := range p {
		keys[i] = key
		if !plainKey.MatchString(key) {
			keys[i] = strconv.Quote(key)
		}
	}
	return strings.Join(keys, ".")
}
