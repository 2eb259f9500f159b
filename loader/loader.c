//go:build ignore

/*
 * The loader runs a program on a node that has no image but the pause image.
 *
 *	loader [-s] [-w SECONDS] [--mount=PATH]... [--env=NAME]... DIR TARGET [ARG...]
 *
 * It runs as /payload/loader, from a volume of ConfigMaps, in a pod whose image is the pause image. It reads
 * DIR/manifest, joins DIR/chunk-00, chunk-01, ..., which are a gzip-compressed image layer, extracts the program,
 * writes it to TARGET and executes it with the ARGs and ZARF_REGISTRY_PROGRAM, the program's SHA-256 in hexadecimal.
 * A chunk is inflated only after its SHA-256 has been verified, and the program is renamed to TARGET only after its
 * own SHA-256 has been verified.
 *
 * The image must not influence the program. --mount names each mount of the pod. The loader starts nothing unless
 * each of them is mounted once, at that path, with no other mount above or below it: an image places mounts with
 * VOLUME, and moves those of the pod with symbolic links. Mounts elsewhere are allowed: runtimes and admission
 * webhooks add some. With --mount, the program gets only the environment variables that --env names, because others
 * may be the image's. Without, there is no check, and the program gets all variables: pods of an older chart may
 * start a newer loader. An image that replaces the loader itself cannot be detected here.
 *
 * It waits up to SECONDS in total (default 20) for a missing or damaged manifest or chunk, checking twice a second:
 * kubelets see new ConfigMaps one by one. Each check opens the files by path, because a kubelet replaces all files of a
 * volume at once behind a symbolic link. If the manifest changes meanwhile, the loader starts over with the new one.
 *
 * It prints nothing if it succeeds without waiting. A failure prints one line to stderr and has its own exit code. It
 * uses no C library, because the image has none.
 *
 * Without -s, execve replaces the loader. With -s it stays, supervises the program as process 1 of the container, and
 * replaces it without an interruption when the manifest names another program:
 *
 *   - It starts the new program, the successor, next to the current one. File descriptor 3 of each program is the write
 *     end of a pipe. A program that is ready writes a byte to it.
 *   - When the successor is ready, the current program gets SIGTERM and ends in its own time. If the successor ends
 *     first, or is not ready in time, the current program goes on. The next attempt is at the next change of the
 *     manifest, or after a minute if the payload was the reason.
 *   - On SIGTERM, or another signal that an image may name as STOPSIGNAL, all programs get SIGTERM, and the loader
 *     exits after them. Its exit status is the current program's, or 128 + the number of the signal that killed it.
 *     If the current program ends by itself, the loader kills the others and exits.
 */
#include "sys.h"

#include "inflate.h"
#include "manifest.h"
#include "sha256.h"

enum exit_code {
	EXIT_USAGE = 101,        /* invalid command line */
	EXIT_MISSING = 102,      /* the manifest or a chunk is missing or unreadable */
	EXIT_MANIFEST = 103,     /* invalid manifest */
	EXIT_CHUNK = 104,        /* a chunk does not match the manifest */
	EXIT_PROGRAM = 105,      /* valid chunks, but the program does not match the manifest */
	EXIT_ARCHITECTURE = 106, /* the payload is for another architecture */
	EXIT_NO_SPACE = 107,     /* no space for TARGET */
	EXIT_TARGET = 108,       /* TARGET cannot be written for another reason */
	EXIT_EXEC = 109,         /* TARGET is valid but cannot be executed, or there can be no process for it */
	EXIT_MOUNT = 110,        /* a mount is not where the pod has it, or another one covers it */
};

enum {
	DEFAULT_WAIT = 20,
	MAX_WAIT = 3600,
	CHECKS_PER_SECOND = 2,

	MAX_PATH = 4096, /* PATH_MAX, with the NUL */

	MAX_NAMES = 256, /* of mounts, and of variables */

	/* Limit of the data after the program: up to 511 bytes of padding and the two empty blocks that end a tar; some
	   writers pad to 20 blocks. */
	MAX_TRAILER = 20 * 512,

	READY_FD = 3,
};

/* Seconds. The tests build a loader with other values. */
#ifndef SUCCESSOR_WAIT
enum {
	SUCCESSOR_WAIT = 120, /* a successor's minimum wait for chunks */
	SUCCESSOR_START = 60, /* the time for its start after that */
	RETRY_AFTER = 60,
};
#endif

static const char repair[] = "re-run helm upgrade or zarf-registry prepare to repair the payload";

static const char *directory;
static const char *target;
static char temporary[MAX_PATH];
static int temporary_exists;
static char **program_arguments; /* from TARGET on */
static char **inherited_environment;
static const char *mounts[MAX_NAMES];
static unsigned mount_count;
static const char *variables[MAX_NAMES];
static unsigned variable_count;
static unsigned checks_left;
static int announced;

static uint8_t manifest_data[MANIFEST_MAX_SIZE + 1];
static size_t manifest_size;
static struct manifest manifest;

/* One byte more than allowed, to detect a chunk that is too long. */
static uint8_t buffer[MANIFEST_MAX_CHUNK_SIZE + 1];

/* The line to print, truncated if too long. */
static char line[1024];
static size_t line_size;

static void put(const char *text)
{
	for (; *text && line_size < sizeof line - 1; text++)
		line[line_size++] = (uint8_t)*text < ' ' ? '?' : *text; /* a path may contain a line break */
}

static void put_number(uint64_t number)
{
	char digits[21];
	size_t at = sizeof digits - 1;
	digits[at] = 0;
	do {
		digits[--at] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	put(digits + at);
}

/* Writes the first digits of a sum, and NUL. */
static void hexadecimal(char *text, const uint8_t sum[32], int digits)
{
	for (int i = 0; i < digits; i++)
		text[i] = "0123456789abcdef"[sum[i / 2] >> (i % 2 ? 0 : 4) & 15];
	text[digits] = 0;
}

static void put_sha256(const uint8_t sum[32])
{
	char text[65];
	hexadecimal(text, sum, 64);
	put(text);
}

static void put_errno(int error)
{
	switch (error) {
	case EPERM:
		put("operation not permitted");
		break;
	case ENOENT:
		put("no such file or directory");
		break;
	case EIO:
		put("input/output error");
		break;
	case E2BIG:
		put("argument list too long");
		break;
	case ENOEXEC:
		put("exec format error");
		break;
	case EAGAIN:
		put("too many processes");
		break;
	case ENOMEM:
		put("out of memory");
		break;
	case EACCES:
		put("permission denied");
		break;
	case EEXIST:
		put("file exists");
		break;
	case ENOTDIR:
		put("not a directory");
		break;
	case EISDIR:
		put("is a directory");
		break;
	case EMFILE:
		put("too many open files");
		break;
	case ETXTBSY:
		put("file is busy");
		break;
	case ENOSPC:
		put("no space left on device");
		break;
	case EROFS:
		put("read-only file system");
		break;
	case ELOOP:
		put("too many symbolic links");
		break;
	case EDQUOT:
		put("disk quota exceeded");
		break;
	default:
		put("errno ");
		put_number((uint64_t)error);
	}
}

static void start_line(void)
{
	line_size = 0;
	put("zarf-registry loader: ");
}

static void print_line(void)
{
	line[line_size++] = '\n';
	sys_write(2, line, line_size);
}

/* Prints the line with the next step, and exits. */
__attribute__((noreturn)) static void fail(enum exit_code code, const char *next_step)
{
	if (temporary_exists)
		sys_unlink(temporary);
	put(": ");
	put(next_step);
	print_line();
	sys_exit(code);
}

/* For a problem that may resolve itself: waits half a second, or fails after the last check. */
static void wait_or_fail(enum exit_code code)
{
	if (checks_left == 0)
		fail(code, repair);
	if (!announced) {
		announced = 1;
		put(": waiting up to ");
		put_number(checks_left / CHECKS_PER_SECOND);
		put(" s for it to come right");
		print_line();
	}
	checks_left--;
	sys_sleep(1000 / CHECKS_PER_SECOND);
}

static size_t length(const char *text)
{
	size_t size = 0;
	while (text[size])
		size++;
	return size;
}

/* Concatenates a and b into path. Returns 0 if they do not fit. */
static int join(char path[MAX_PATH], const char *a, const char *b)
{
	size_t a_size = length(a), b_size = length(b);
	if (a_size + b_size >= MAX_PATH)
		return 0;
	memcpy(path, a, a_size);
	memcpy(path + a_size, b, b_size + 1);
	return 1;
}

/* Reads at most limit bytes of a file in DIR. Returns their number, or -errno. */
static long read_file(const char *name, uint8_t *data, size_t limit)
{
	char path[MAX_PATH];
	join(path, directory, name); /* fits: checked in start */
	int fd = sys_open(path, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	size_t size = 0;
	while (size < limit) {
		long n = sys_read(fd, data + size, limit - size);
		if (n < 0) {
			sys_close(fd);
			return n;
		}
		if (n == 0)
			break;
		size += (size_t)n;
	}
	sys_close(fd);
	return (long)size;
}

static int equal(const void *a, const void *b, size_t size)
{
	const uint8_t *x = a, *y = b;
	for (size_t i = 0; i < size; i++)
		if (x[i] != y[i])
			return 0;
	return 1;
}

static void put_unreadable(long error)
{
	if (error == -ENOENT) {
		put("missing");
	} else {
		put("cannot be read: ");
		put_errno((int)-error);
	}
}

/* Returns once the manifest is valid and for this architecture. */
static void read_manifest(void)
{
	for (;;) {
		long size = read_file("/manifest", manifest_data, sizeof manifest_data);
		start_line();
		put("manifest");
		if (size < 0) {
			put(": ");
			put_unreadable(size);
			wait_or_fail(EXIT_MISSING);
			continue;
		}
		manifest_size = (size_t)size;
		unsigned at;
		const char *expected = manifest_parse(&manifest, manifest_data, manifest_size, &at);
		if (!expected)
			break;
		put(" line ");
		put_number(at);
		put(": expected ");
		put(expected);
		wait_or_fail(EXIT_MANIFEST);
	}
	if (!equal(manifest.architecture, ARCHITECTURE, sizeof ARCHITECTURE)) {
		put(": the payload is for ");
		put(manifest.architecture);
		put(", this node is " ARCHITECTURE);
		fail(EXIT_ARCHITECTURE, "give the pod a nodeSelector kubernetes.io/arch that fits its payload");
	}
}

static int manifest_changed(void)
{
	static uint8_t now[sizeof manifest_data];
	long size = read_file("/manifest", now, sizeof now);
	return size != (long)manifest_size || !equal(now, manifest_data, manifest_size);
}

/* Reads a chunk into the buffer. Returns 1 if it is valid, 0 if the manifest has changed. */
static int read_chunk(uint32_t index)
{
	const struct manifest_chunk *want = &manifest.chunk[index];
	char name[] = "/chunk-00";
	name[7] = (char)('0' + index / 10);
	name[8] = (char)('0' + index % 10);
	for (;;) {
		enum exit_code code = EXIT_CHUNK;
		long size = read_file(name, buffer, want->size + 1);
		start_line();
		put("chunk ");
		put(name + 7);
		put(": ");
		if (size < 0) {
			code = EXIT_MISSING;
			put_unreadable(size);
		} else if (size > (long)want->size) {
			put("has more bytes than the ");
			put_number(want->size);
			put(" of the manifest");
		} else if (size < (long)want->size) {
			put("has ");
			put_number((uint64_t)size);
			put(" bytes, manifest says ");
			put_number(want->size);
		} else {
			struct sha256 hash;
			uint8_t sum[32];
			sha256_init(&hash);
			sha256_update(&hash, buffer, want->size);
			sha256_final(&hash, sum);
			if (equal(sum, want->sha256, 32))
				return 1;
			put("sha256 is ");
			put_sha256(sum);
			put(", manifest says ");
			put_sha256(want->sha256);
		}
		wait_or_fail(code);
		if (manifest_changed())
			return 0;
	}
}

/* Whether TARGET is already complete and executable, as a previous start of this pod left it. */
static int target_is_valid(void)
{
	struct sha256 hash;
	uint8_t sum[32];
	int fd = sys_open(target, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return 0;
	sha256_init(&hash);
	for (;;) {
		long n = sys_read(fd, buffer, 65536);
		if (n > 0)
			sha256_update(&hash, buffer, (size_t)n);
		if (n <= 0 || hash.size > manifest.program_size)
			break;
	}
	sys_close(fd);
	sha256_final(&hash, sum);
	return hash.size == manifest.program_size && equal(sum, manifest.program_sha256, 32) &&
		sys_access(target, X_OK) == 0;
}

/* The state of writing the program from the chunks to the file. */
struct transfer {
	uint32_t next_chunk;
	int manifest_changed;
	int fd;
	uint64_t inflated; /* bytes of the layer */
	struct sha256 hash;
};

static size_t transfer_input(void *context, const uint8_t **data)
{
	struct transfer *t = context;
	if (t->manifest_changed || t->next_chunk == manifest.chunks)
		return 0;
	if (!read_chunk(t->next_chunk)) {
		t->manifest_changed = 1;
		return 0;
	}
	*data = buffer;
	return manifest.chunk[t->next_chunk++].size;
}

__attribute__((noreturn)) static void fail_writing(const char *verb, const char *path, int error)
{
	start_line();
	put("cannot ");
	put(verb);
	put(" ");
	put(path);
	put(": ");
	put_errno(error);
	if (error == ENOSPC || error == EDQUOT) {
		put(", ");
		put_number(manifest.program_size);
		put(" bytes are needed");
		fail(EXIT_NO_SPACE, "raise the volume's sizeLimit or free space on the node");
	}
	fail(EXIT_TARGET, "mount a writable emptyDir there");
}

static int transfer_output(void *context, const uint8_t *data, size_t size)
{
	struct transfer *t = context;
	/* The part of this data that belongs to the program. */
	uint64_t start = manifest.program_offset, stop = start + manifest.program_size;
	uint64_t from = t->inflated, to = from + size;
	t->inflated = to;
	if (to > stop + MAX_TRAILER)
		return -1;
	from = from > start ? from : start;
	to = to < stop ? to : stop;
	if (from >= to)
		return 0;
	data += size - (t->inflated - from);
	size = to - from;
	sha256_update(&t->hash, data, size);
	while (size) {
		long n = sys_write(t->fd, data, size);
		if (n <= 0)
			fail_writing("write", temporary, n ? (int)-n : EIO);
		data += n;
		size -= (size_t)n;
	}
	return 0;
}

/* Writes TARGET. Returns 1 on success, 0 if the manifest has changed. */
static int write_target(void)
{
	static uint8_t window[GUNZIP_WINDOW];
	static struct gunzip z;
	struct transfer t = {0};

	/* O_EXCL does not write to existing files or follow links. */
	sys_unlink(temporary);
	t.fd = sys_open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (t.fd < 0)
		fail_writing("create", temporary, -t.fd);
	temporary_exists = 1;
	sha256_init(&t.hash);
	z.input = transfer_input;
	z.output = transfer_output;
	z.context = &t;
	z.window = window;
	const char *error = gunzip(&z);
	if (t.manifest_changed) {
		sys_close(t.fd);
		sys_unlink(temporary);
		temporary_exists = 0;
		return 0;
	}

	/* All chunks match the manifest, so the payload was built incorrectly. Waiting does not help. */
	static const char rebuild[] = "re-run helm upgrade or zarf-registry prepare; "
		"if it stays, this payload was built wrong: use another version";
	uint8_t sum[32];
	sha256_final(&t.hash, sum);
	start_line();
	put("program ");
	put(manifest.program);
	put(": ");
	if (error) {
		put(error);
		fail(EXIT_PROGRAM, rebuild);
	}
	if (t.hash.size != manifest.program_size) {
		put("has ");
		put_number(t.hash.size);
		put(" bytes, manifest says ");
		put_number(manifest.program_size);
		fail(EXIT_PROGRAM, rebuild);
	}
	if (!equal(sum, manifest.program_sha256, 32)) {
		put("sha256 is ");
		put_sha256(sum);
		put(", manifest says ");
		put_sha256(manifest.program_sha256);
		fail(EXIT_PROGRAM, rebuild);
	}

	int result = sys_fchmod(t.fd, 0555);
	if (result < 0)
		fail_writing("set the mode of", temporary, -result);
	/* Some file systems report a lack of space only now. An open file could not be executed either. */
	result = sys_close(t.fd);
	if (result < 0)
		fail_writing("write", temporary, -result);
	result = sys_rename(temporary, target);
	if (result < 0)
		fail_writing("replace", target, -result);
	temporary_exists = 0;
	return 1;
}

__attribute__((noreturn)) static void usage(const char *what)
{
	start_line();
	put(what);
	fail(EXIT_USAGE, "usage: loader [-s] [-w SECONDS] [--mount=PATH]... [--env=NAME]... DIR TARGET [ARG...]");
}

static unsigned parse_wait(const char *text)
{
	unsigned seconds = 0;
	size_t size = 0;
	for (; text && text[size] >= '0' && text[size] <= '9' && seconds <= MAX_WAIT; size++)
		seconds = seconds * 10 + (unsigned)(text[size] - '0');
	if (size == 0 || text[size] || seconds > MAX_WAIT)
		usage("-w takes a number of seconds from 0 to 3600");
	return seconds;
}

static void add_name(const char **names, unsigned *count, const char *name)
{
	if (*count == MAX_NAMES)
		usage("more than 256 mounts or variables");
	names[(*count)++] = name;
}

/* Reads the mount points of the container into the buffer, each with NUL. Returns their size. */
static size_t read_mount_points(void)
{
	static const char path[] = "/proc/self/mountinfo";
	int fd = sys_open(path, O_RDONLY | O_NONBLOCK, 0);
	long n = fd < 0 ? fd : sys_filesystem(fd);
	size_t size = 0, points = 0;
	if (n == PROC_SUPER_MAGIC) /* and no file of the image */
		while ((n = sys_read(fd, buffer + size, sizeof buffer - size)) > 0)
			size += (size_t)n;
	else if (n >= 0)
		n = -ENOENT;
	if (n < 0 || size == sizeof buffer) {
		start_line();
		put(path);
		put(": ");
		put_errno(n < 0 ? (int)-n : E2BIG);
		fail(EXIT_MOUNT, "the loader needs the container's own /proc");
	}
	sys_close(fd);
	/* A line is "ID PARENT DEVICE ROOT MOUNT-POINT ...", with white space and backslashes in paths as 3 octal digits.
	   The mount points overwrite what has been read. */
	for (size_t at = 0, field = 0; at < size; at++) {
		uint8_t c = buffer[at];
		if (c == ' ' || c == '\n') {
			if (field == 4)
				buffer[points++] = 0;
			field = c == ' ' ? field + 1 : 0;
		} else if (field == 4) {
			if (c == '\\' && size - at > 3) {
				c = (uint8_t)((buffer[at + 1] - '0') << 6 | (buffer[at + 2] - '0') << 3 | (buffer[at + 3] - '0'));
				at += 3;
			}
			buffer[points++] = c;
		}
	}
	return points;
}

/* Whether a path is below a directory other than "/". */
static int below(const char *path, const char *dir)
{
	size_t size = length(dir);
	return equal(path, dir, size) && path[size] == '/';
}

/* Whether path equals one of the mounts that --mount names. */
static int is_named(const char *path)
{
	for (unsigned i = 0; i < mount_count; i++)
		if (equal(path, mounts[i], length(path) + 1))
			return 1;
	return 0;
}

__attribute__((noreturn)) static void refuse(const char *point, const char *relation, const char *path)
{
	start_line();
	put("the image influences the pod's mounts: ");
	put(point);
	put(relation);
	put(path);
	fail(EXIT_MOUNT, "set injector.image to an image without volumes and links, such as the node's pause image");
}

/* With links in a path of the pod, the mount has another mount point. With a mount point once in the list, and no
   unnamed mount above it, the path leads to that mount: runtimes mount the pod's volumes from the root downwards. */
static void check_mounts(void)
{
	size_t size = mount_count ? read_mount_points() : 0;
	for (unsigned i = 0; i < mount_count; i++) {
		const char *path = mounts[i];
		unsigned found = 0;
		for (size_t at = 0; at < size; at += length((char *)buffer + at) + 1) {
			const char *point = (char *)buffer + at;
			if (equal(point, path, length(path) + 1))
				found++;
			else if (below(point, path) && !is_named(point))
				refuse(point, " is a mount below ", path);
			else if (below(path, point) && !is_named(point))
				refuse(point, " is a mount above ", path);
		}
		if (found == 0)
			refuse(path, " is not mounted there", "");
		if (found > 1)
			refuse(path, " is mounted more than once", "");
	}
}

/* Whether a variable is passed on to the program. */
static int is_passed(const char *variable)
{
	if (!mount_count)
		return 1;
	for (unsigned i = 0; i < variable_count; i++) {
		size_t size = length(variables[i]);
		if (equal(variable, variables[i], size) && variable[size] == '=')
			return 1;
	}
	return 0;
}

/* Executes the program of the manifest, with the variable ZARF_REGISTRY_PROGRAM. */
__attribute__((noreturn)) static void execute(void)
{
	static const char name[] = "ZARF_REGISTRY_PROGRAM=";
	char variable[sizeof name + 64];
	memcpy(variable, name, sizeof name);
	hexadecimal(variable + sizeof name - 1, manifest.program_sha256, 64);

	size_t size = 0;
	while (inherited_environment[size])
		size++;
	char *environment[size + 2], **next = environment;
	for (size_t i = 0; i < size; i++)
		if (is_passed(inherited_environment[i]) && !equal(inherited_environment[i], name, sizeof name - 1))
			*next++ = inherited_environment[i];
	*next++ = variable;
	*next = NULL;

	int result = sys_execve(target, program_arguments, environment);
	start_line();
	put("cannot execute ");
	put(target);
	put(": ");
	put_errno(-result);
	fail(EXIT_EXEC, "the volume must not be mounted noexec, and the program must be one for " ARCHITECTURE);
}

__attribute__((noreturn)) static void load_and_execute(void)
{
	do
		read_manifest();
	while (!target_is_valid() && !write_target());
	execute();
}

/* A program that the supervisor started. */
struct program {
	int pid;      /* 0 = none, or it has ended */
	int ready_fd; /* the read end of its pipe; -1 = closed */
	int ready;
	unsigned age; /* seconds */
	uint8_t sha256[32];
};

static struct program current, successor, previous;
static unsigned seconds_to_start; /* of a successor */
static unsigned retry_in;         /* seconds */
static int terminating;
static int exit_status; /* of the current program */

/* All that images name as STOPSIGNAL, except SIGKILL: process 1 would ignore what it does not handle. Those of httpd
   and systemd are SIGWINCH and SIGRTMIN+3. */
static const signal_set handled_signals =
	1ull << (SIGHUP - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGQUIT - 1) | 1ull << (SIGUSR1 - 1) |
	1ull << (SIGUSR2 - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGCHLD - 1) | 1ull << (SIGWINCH - 1) |
	1ull << (SIGPWR - 1) | ~0ull << (SIGRTMIN - 1);
static signal_set inherited_mask;

/* Starts a process that loads and executes the program of the manifest. Returns -errno if that fails. */
static int start_program(struct program *p)
{
	int ends[2];
	int result = sys_pipe(ends, O_CLOEXEC | O_NONBLOCK);
	if (result < 0)
		return result;
	int pid = sys_fork();
	if (pid == 0) {
		sys_dup(ends[1], READY_FD);
		sys_signal_mask(SIG_SETMASK, &inherited_mask, NULL);
		load_and_execute();
	}
	sys_close(ends[1]);
	if (pid < 0) {
		sys_close(ends[0]);
		return pid;
	}
	*p = (struct program){.pid = pid, .ready_fd = ends[0]};
	memcpy(p->sha256, manifest.program_sha256, 32);
	return 0;
}

static void close_pipe(struct program *p)
{
	if (p->ready_fd >= 0)
		sys_close(p->ready_fd);
	p->ready_fd = -1;
}

static void read_pipe(struct program *p)
{
	uint8_t data[64];
	long size;
	if (p->pid == 0 || p->ready_fd < 0)
		return;
	while ((size = sys_read(p->ready_fd, data, sizeof data)) > 0)
		p->ready = 1;
	if (size == 0)
		close_pipe(p);
}

static void send_all(int signal)
{
	if (current.pid)
		sys_kill(current.pid, signal);
	if (successor.pid)
		sys_kill(successor.pid, signal);
	/* It was told to end before. A second signal would cut off what it delivers. */
	if (previous.pid && signal == SIGKILL)
		sys_kill(previous.pid, signal);
}

static void successor_failed(int status)
{
	if (terminating)
		return;
	/* Chunks may be repaired and a full volume emptied without a change of the manifest. */
	if (status >= EXIT_MISSING && status <= EXIT_EXEC)
		retry_in = RETRY_AFTER;
	start_line();
	put("the new program ");
	if (successor.age >= seconds_to_start) {
		put("was not ready after ");
		put_number(seconds_to_start);
		put(" s");
	} else {
		put("ended with ");
		put_number((uint64_t)status);
		put(" before it was ready");
	}
	put(", keeping the current one");
	print_line();
}

/* Whether the process that was reaped is this program. */
static int ended(struct program *p, int pid)
{
	if (p->pid != pid)
		return 0;
	p->pid = 0;
	close_pipe(p);
	return 1;
}

/* Reaps all processes that have ended: programs, and orphans that process 1 inherits. Exits after the last program. */
static void reap(void)
{
	int pid, wait_status;
	while ((pid = sys_reap(&wait_status)) > 0) {
		int killed_by = wait_status & 127;
		int status = killed_by ? 128 + killed_by : wait_status >> 8 & 255;
		if (ended(&current, pid))
			exit_status = status;
		else if (ended(&successor, pid))
			successor_failed(status);
		else
			ended(&previous, pid);
	}
	if (!current.pid && !terminating) {
		terminating = 1;
		send_all(SIGKILL);
	}
	if (!current.pid && !successor.pid && !previous.pid)
		sys_exit(exit_status);
}

/* Whether DIR has a valid manifest other than the last one, which it replaces. */
static int next_manifest(void)
{
	static uint8_t data[sizeof manifest_data];
	static struct manifest next;
	unsigned at;
	long size = read_file("/manifest", data, sizeof data);
	if (size < 0 || (size == (long)manifest_size && equal(data, manifest_data, manifest_size)) ||
	    manifest_parse(&next, data, (size_t)size, &at))
		return 0;
	manifest = next;
	manifest_size = (size_t)size;
	memcpy(manifest_data, data, manifest_size);
	return 1;
}

static void hand_over(void)
{
	char digits[13];
	previous = current;
	current = successor;
	successor.pid = 0;
	hexadecimal(digits, current.sha256, 12);
	start_line();
	put("program ");
	put(digits);
	put(" takes over");
	print_line();
	sys_kill(previous.pid, SIGTERM);
}

/* What the supervisor does once a second. */
static void tick(unsigned wait)
{
	current.age++;
	successor.age++;
	if (successor.pid && successor.age >= seconds_to_start)
		sys_kill(successor.pid, SIGKILL);
	if (retry_in > 0 && --retry_in == 0)
		manifest_size = 0; /* as if the manifest had changed */
	/* A current program that is not ready may still be writing TARGET. */
	if (successor.pid || previous.pid || (!current.ready && current.age < seconds_to_start))
		return;
	if (!next_manifest() || equal(manifest.program_sha256, current.sha256, 32))
		return;
	checks_left = wait * CHECKS_PER_SECOND;
	announced = 0;
	retry_in = 0;
	int result = start_program(&successor);
	if (result < 0) {
		retry_in = RETRY_AFTER;
		start_line();
		put("cannot start the new program: ");
		put_errno(-result);
		put(", keeping the current one");
		print_line();
	}
}

__attribute__((noreturn)) static void supervise(unsigned wait)
{
	if (wait < SUCCESSOR_WAIT)
		wait = SUCCESSOR_WAIT;
	seconds_to_start = wait + SUCCESSOR_START;

	read_manifest();
	/* Occupies the numbers up to READY_FD, because dup3 requires that a pipe has others. */
	for (int fd = 0; fd >= 0 && fd < READY_FD;)
		fd = sys_open("/", O_RDONLY, 0);
	sys_signal_mask(SIG_BLOCK, &handled_signals, &inherited_mask);
	int result = start_program(&current);
	if (result < 0) {
		start_line();
		put("cannot start the program: ");
		put_errno(-result);
		fail(EXIT_EXEC, "raise the limit on processes or open files of the pod or the node");
	}
	for (;;) {
		int signal = sys_signal_wait(&handled_signals, 1);
		if (signal > 0 && signal != SIGCHLD) {
			terminating = 1;
			send_all(SIGTERM);
		}
		reap();
		if (terminating)
			continue;
		read_pipe(&current);
		read_pipe(&successor);
		if (successor.pid && successor.ready && successor.age < seconds_to_start)
			hand_over();
		if (signal == -EAGAIN)
			tick(wait);
	}
}

/* Called by _start with the initial stack pointer, which points to argc, argv, NULL, environment, NULL. */
__attribute__((noreturn, used)) void start(long *stack)
{
	long argc = stack[0];
	char **argv = (char **)(stack + 1);
	char **next = argc > 0 ? argv + 1 : argv;
	unsigned wait = DEFAULT_WAIT;
	int supervised = 0;

	for (; *next && **next == '-'; next++) {
		if (equal(*next, "-s", 3))
			supervised = 1;
		else if (equal(*next, "-w", 3))
			wait = parse_wait(*++next);
		else if (equal(*next, "--mount=", 8))
			add_name(mounts, &mount_count, *next + 8);
		else if (equal(*next, "--env=", 6))
			add_name(variables, &variable_count, *next + 6);
		else
			usage("unknown option");
	}
	if (!next[0] || !next[1])
		usage("DIR and TARGET are needed");
	directory = next[0];
	target = next[1];
	if (!join(temporary, directory, "/chunk-00") || !join(temporary, target, ".tmp"))
		usage("DIR or TARGET is too long");
	program_arguments = next + 1;
	inherited_environment = argv + argc + 1;
	checks_left = wait * CHECKS_PER_SECOND;

	check_mounts();
	if (supervised)
		supervise(wait);
	load_and_execute();
}
