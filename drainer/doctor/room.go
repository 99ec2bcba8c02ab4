package doctor

import "context"

// daemonConnections is what one `drainer run` holds: seven of its store, one
// that listens, one that counts, six for jobs, one for River's notifications.
const daemonConnections = 16

type room struct {
	Superuser     bool
	Limit         int64 // of the server, for those who are not superusers
	InUse         int64
	RoleLimit     int64 // -1: none
	RoleInUse     int64
	DatabaseLimit int64 // -1: none
	DatabaseInUse int64
}

// What other sessions do is hidden from most roles; that they are there is not.
const roomSQL = `
	SELECT r.rolsuper,
		current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
			- coalesce(current_setting('reserved_connections', true)::bigint, 0),
		(SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database WHERE datname IS NOT NULL),
		r.rolconnlimit::bigint, (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
		d.datconnlimit::bigint, (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())
	FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()`

func lookAtRoom(ctx context.Context, x *examination) (found []Finding, err error) {
	seen, err := readOne[room](ctx, x, roomSQL)
	if err != nil {
		return nil, err
	}
	for _, limit := range []struct {
		of, cure    string
		most, inUse int64
	}{
		{"max_connections", "raise max_connections, lower what others hold, or put a pooler between", seen.Limit, seen.InUse},
		{"the role's CONNECTION LIMIT", "ALTER ROLE … CONNECTION LIMIT", seen.RoleLimit, seen.RoleInUse},
		{"the database's CONNECTION LIMIT", "ALTER DATABASE … CONNECTION LIMIT", seen.DatabaseLimit, seen.DatabaseInUse},
	} {
		if limit.most >= 0 && limit.most-limit.inUse < daemonConnections {
			found = append(found, warning(limit.cure, "%s leaves room for %d more connections; one drainer holds %d", limit.of, max(0, limit.most-limit.inUse), daemonConnections))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("%d of %d connections are in use; one drainer holds %d", seen.InUse, seen.Limit, daemonConnections))
	}
	return found, nil
}
