package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const idHeader = standardwebhooks.HeaderWebhookID

// The lengths that Standard Webhooks demands of a secret, in octets.
const (
	shortestSecret = 24
	longestSecret  = 64
)

type secrets []*standardwebhooks.Webhook

func parseSecrets(texts []string) (secrets, error) {
	if len(texts) == 0 {
		return nil, errors.New("signing_secrets is missing; a receiver could not tell our events from another's")
	}
	parsed := make(secrets, len(texts))
	var problems []error
	for i, text := range texts {
		octets, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if err != nil || len(octets) < shortestSecret || len(octets) > longestSecret {
			problems = append(problems, fmt.Errorf("signing_secrets.%d is not whsec_ and %d to %d octets in base64", i, shortestSecret, longestSecret))
			continue
		}
		parsed[i], err = standardwebhooks.NewWebhookRaw(octets)
		problems = append(problems, err)
	}
	return parsed, errors.Join(problems...)
}

// sign adds one signature a secret, the first secret's first. The time is that
// of the attempt: receivers refuse what was signed long ago.
func (r *receiver) sign(header http.Header, body []byte) {
	now := time.Now()
	signatures := make([]string, 0, len(r.secrets))
	for _, secret := range r.secrets {
		signature, _ := secret.Sign(header.Get(idHeader), now, body) // nothing can fail in an HMAC
		signatures = append(signatures, signature)
	}
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
}
