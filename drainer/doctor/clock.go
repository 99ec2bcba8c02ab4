package doctor

import (
	"context"
	"time"
)

const (
	noticeableSkew = time.Second
	harmfulSkew    = 30 * time.Second
)

// lookAtClock compares the clocks. Due times and leases are the database's and
// survive a wrong clock here; signatures, certificates and logs do not.
func lookAtClock(ctx context.Context, x *examination) ([]Finding, error) {
	r, err := x.readClock(ctx)
	if err != nil {
		return nil, err
	}
	return []Finding{judgeSkew(r)}, nil
}

func judgeSkew(r reading) Finding {
	const cure = "start a time service (chrony, systemd-timesyncd) on the machine that is wrong; chronyc tracking tells which"
	err := r.heard.Sub(r.asked) / 2
	ahead := r.asked.Add(err).Sub(r.server)
	skew, direction := ahead.Abs(), "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	switch certain := skew - err; {
	case certain > harmfulSkew:
		return problem(cure, "this machine is %s %s the database (± %s): webhooks' signatures and certificates are judged wrongly", short(skew), direction, short(err))
	case certain > noticeableSkew:
		return warning(cure, "this machine is %s %s the database (± %s)", short(skew), direction, short(err))
	}
	return ok("this machine and the database agree within %s", short(skew+err))
}
