package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// client follows no redirect: the body may hold a secret, and is for the
// configured address alone.
var client = &http.Client{
	Timeout:       10 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// RefusedError is a channel's answer that is no success.
type RefusedError struct{ Status int }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("it answered with HTTP status %d; check its address and secret", e.Status)
}

var (
	errAddress  = errors.New("its address cannot be used; correct the configuration")
	errNoAnswer = errors.New("it gave no answer that could be read")
)

// post delivers a JSON body. Slack's address is its secret, and the errors of
// net/http repeat an address, so none of them is handed on as it is.
func post(ctx context.Context, url string, header http.Header, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return errAddress
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "drainer")
	response, err := client.Do(request)
	if err != nil {
		return unreachable(err)
	}
	_ = response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return &RefusedError{response.StatusCode}
	}
	return nil
}

func unreachable(err error) error {
	var connection *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &connection):
		return fmt.Errorf("it cannot be reached: %w", connection)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("it cannot be reached: %w", context.DeadlineExceeded)
	}
	return errNoAnswer
}

func postJSON(ctx context.Context, url string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return post(ctx, url, http.Header{}, text)
}
