package smtp

import netsmtp "net/smtp"

// plain is RFC 4616. That nobody listens is seen to by the configuration.
type plain struct{ user, password string }

func (p *plain) Start(*netsmtp.ServerInfo) (string, []byte, error) {
	return "PLAIN", []byte("\x00" + p.user + "\x00" + p.password), nil
}

func (p *plain) Next(_ []byte, more bool) ([]byte, error) {
	if more {
		return nil, errAuthentication
	}
	return nil, nil
}

// login is what servers speak that want to be asked for the user and the
// password one after the other (draft-murchison-sasl-login). What they call
// the two differs, so only the order counts.
type login struct {
	user, password string
	asked          int
}

func (l *login) Start(*netsmtp.ServerInfo) (string, []byte, error) { return "LOGIN", nil, nil }

func (l *login) Next(_ []byte, more bool) ([]byte, error) {
	if !more {
		return nil, nil
	}
	l.asked++
	switch l.asked {
	case 1:
		return []byte(l.user), nil
	case 2:
		return []byte(l.password), nil
	}
	return nil, errAuthentication
}
