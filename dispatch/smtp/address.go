package smtp

import (
	"errors"
	"net/mail"
	"regexp"
	"strings"
)

var (
	errAddress    = errors.New("not one plain address")
	errNotAllowed = errors.New("the address is not among allow_recipients")

	domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

	// localPart has neither quotes, which hide what a command ends at, nor
	// the ! and % that relays of old take for a route to somewhere else.
	localPart = regexp.MustCompile("^[A-Za-z0-9#$&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9#$&'*+/=?^_`{|}~-]+)*$")
)

const (
	maxLocalPart = 64  // RFC 5321, 4.5.3.1.1
	maxDomain    = 255 // RFC 5321, 4.5.3.1.2
)

// parseAddress takes one address, with or without a name, that can stand in a
// command as it is.
func parseAddress(text string) (*mail.Address, error) {
	address, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errAddress // the parser's error would repeat it
	}
	local, domain := split(address.Address)
	switch {
	case len(local) > maxLocalPart || len(domain) > maxDomain,
		!localPart.MatchString(local) || !domainName.MatchString(domain):
		return nil, errAddress
	}
	return address, nil
}

func split(address string) (local, domain string) {
	at := strings.LastIndexByte(address, '@')
	return address[:max(at, 0)], address[at+1:]
}

// allowed is whom a tool may write to; nil is everybody. Entries are in lower
// case: an address, or @ and a domain.
type allowed []string

func parseAllowed(entries []string) (allowed, error) {
	if entries != nil && len(entries) == 0 {
		return nil, errors.New("allow_recipients is empty, which would allow nobody; leave it out to allow everybody")
	}
	var parsed allowed
	for _, entry := range entries {
		local, domain := split(entry)
		if !domainName.MatchString(domain) || !strings.Contains(entry, "@") || local != "" && !localPart.MatchString(local) || strings.Contains(local, "*") {
			return nil, errors.New("allow_recipients: an entry is neither @ and a domain nor an address")
		}
		parsed = append(parsed, strings.ToLower(entry))
	}
	return parsed, nil
}

func (a allowed) allows(address string) bool {
	if a == nil {
		return true
	}
	address = strings.ToLower(address)
	_, domain := split(address)
	for _, entry := range a {
		if entry == address || entry == "@"+domain {
			return true
		}
	}
	return false
}
