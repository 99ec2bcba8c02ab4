package doctor

import (
	"context"
	"strconv"
	"time"
)

// sessionLimit is a timeout that ends what the daemon needs longer. The
// daemon sets idle_in_transaction_session_timeout itself.
type sessionLimit struct {
	name  string
	least time.Duration // 0: any value hurts
	hurts string
}

var sessionLimits = []sessionLimit{
	{"statement_timeout", 10 * time.Second, "pruning and recovery may take longer, and never end then"},
	{"transaction_timeout", 30 * time.Second, "a saga's step may take longer, and never ends then"},
	{"lock_timeout", time.Second, "settling waits for operators' short locks"},
	{"idle_session_timeout", 0, "it cuts the connection that waits for notifications, again and again"},
}

func lookAtSessionLimits(ctx context.Context, x *examination) (found []Finding, err error) {
	names := make([]string, len(sessionLimits))
	for i, limit := range sessionLimits {
		names[i] = limit.name
	}
	settings, err := x.settings(ctx, names...)
	if err != nil {
		return nil, err
	}
	for _, limit := range sessionLimits {
		milliseconds, err := strconv.ParseInt(settings[limit.name].Value, 10, 64)
		if err != nil || milliseconds == 0 { // the server does not know it, or it is off
			continue
		}
		if value := time.Duration(milliseconds) * time.Millisecond; limit.least == 0 || value < limit.least {
			found = append(found, warning(x.cure(settings[limit.name], "0"), "%s is %s: %s", limit.name, value, limit.hurts))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("no timeout ends what the daemon does"))
	}
	return found, nil
}
