//go:build ignore

/*
 * The system calls, the entry point and the memory functions that GCC may call implicitly, for programs without a C
 * library. Linux on amd64 and arm64 only.
 *
 * A call returns a value >= 0, or -errno. All of them are allowed by the default seccomp profile of every container
 * runtime. They are the *at variants, because arm64 lacks the others.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define ARCHITECTURE "amd64"
enum {
	SYS_READ = 0,
	SYS_WRITE = 1,
	SYS_CLOSE = 3,
	SYS_RT_SIGPROCMASK = 14,
	SYS_CLONE = 56,
	SYS_EXECVE = 59,
	SYS_WAIT4 = 61,
	SYS_KILL = 62,
	SYS_FCHMOD = 91,
	SYS_RT_SIGTIMEDWAIT = 128,
	SYS_FSTATFS = 138,
	SYS_CLOCK_NANOSLEEP = 230,
	SYS_EXIT_GROUP = 231,
	SYS_OPENAT = 257,
	SYS_UNLINKAT = 263,
	SYS_RENAMEAT = 264,
	SYS_FACCESSAT = 269,
	SYS_DUP3 = 292,
	SYS_PIPE2 = 293,
};

static long sys4(long number, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

/* The kernel enters with argc at the stack pointer. C functions require a stack aligned to 16 bytes. */
__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call start\n");

#elif defined(__aarch64__)
#define ARCHITECTURE "arm64"
enum {
	SYS_DUP3 = 24,
	SYS_UNLINKAT = 35,
	SYS_RENAMEAT = 38,
	SYS_FSTATFS = 44,
	SYS_FACCESSAT = 48,
	SYS_FCHMOD = 52,
	SYS_OPENAT = 56,
	SYS_CLOSE = 57,
	SYS_PIPE2 = 59,
	SYS_READ = 63,
	SYS_WRITE = 64,
	SYS_EXIT_GROUP = 94,
	SYS_CLOCK_NANOSLEEP = 115,
	SYS_KILL = 129,
	SYS_RT_SIGPROCMASK = 135,
	SYS_RT_SIGTIMEDWAIT = 137,
	SYS_CLONE = 220,
	SYS_EXECVE = 221,
	SYS_WAIT4 = 260,
};

static long sys4(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

__asm__(".globl _start\n"
	"_start:\n"
	"	mov x29, xzr\n"
	"	mov x30, xzr\n"
	"	mov x0, sp\n"
	"	bl start\n");

#else
#error "the loader is written for amd64 and arm64"
#endif

enum {
	EPERM = 1,
	ENOENT = 2,
	EIO = 5,
	E2BIG = 7,
	ENOEXEC = 8,
	EAGAIN = 11,
	ENOMEM = 12,
	EACCES = 13,
	EEXIST = 17,
	ENOTDIR = 20,
	EISDIR = 21,
	EMFILE = 24,
	ETXTBSY = 26,
	ENOSPC = 28,
	EROFS = 30,
	ELOOP = 40,
	EDQUOT = 122,
};

/* Constants that are equal on both architectures (O_NOFOLLOW, for example, is not). */
enum { O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 0100, O_EXCL = 0200, O_NONBLOCK = 04000, O_CLOEXEC = 02000000 };

enum { AT_FDCWD = -100, X_OK = 1, CLOCK_MONOTONIC = 1, WNOHANG = 1 };

enum { PROC_SUPER_MAGIC = 0x9fa0 };

enum {
	SIGHUP = 1,
	SIGINT = 2,
	SIGQUIT = 3,
	SIGKILL = 9,
	SIGUSR1 = 10,
	SIGUSR2 = 12,
	SIGTERM = 15,
	SIGCHLD = 17,
	SIGWINCH = 28,
	SIGPWR = 30,
	SIGRTMIN = 34,
};

/* A set of signals: bit SIGNAL - 1. */
typedef uint64_t signal_set;

enum { SIG_BLOCK = 0, SIG_SETMASK = 2 };

static inline int sys_open(const char *path, int flags, int mode)
{
	return (int)sys4(SYS_OPENAT, AT_FDCWD, (long)path, flags | O_CLOEXEC, mode);
}

static inline long sys_read(int fd, void *data, size_t size)
{
	return sys4(SYS_READ, fd, (long)data, (long)size, 0);
}

static inline long sys_write(int fd, const void *data, size_t size)
{
	return sys4(SYS_WRITE, fd, (long)data, (long)size, 0);
}

static inline int sys_close(int fd)
{
	return (int)sys4(SYS_CLOSE, fd, 0, 0, 0);
}

/* The type of an open file's file system. */
static inline long sys_filesystem(int fd)
{
	long status[15]; /* struct statfs: the type comes first */
	long result = sys4(SYS_FSTATFS, fd, (long)status, 0, 0);
	return result < 0 ? result : status[0];
}

static inline int sys_fchmod(int fd, int mode)
{
	return (int)sys4(SYS_FCHMOD, fd, mode, 0, 0);
}

static inline int sys_access(const char *path, int mode)
{
	return (int)sys4(SYS_FACCESSAT, AT_FDCWD, (long)path, mode, 0);
}

static inline int sys_unlink(const char *path)
{
	return (int)sys4(SYS_UNLINKAT, AT_FDCWD, (long)path, 0, 0);
}

static inline int sys_rename(const char *from, const char *to)
{
	return (int)sys4(SYS_RENAMEAT, AT_FDCWD, (long)from, AT_FDCWD, (long)to);
}

static inline int sys_execve(const char *path, char **argv, char **envp)
{
	return (int)sys4(SYS_EXECVE, (long)path, (long)argv, (long)envp, 0);
}

static inline void sys_sleep(long milliseconds)
{
	long duration[2] = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	sys4(SYS_CLOCK_NANOSLEEP, CLOCK_MONOTONIC, 0, (long)duration, 0);
}

static inline int sys_pipe(int ends[2], int flags)
{
	return (int)sys4(SYS_PIPE2, (long)ends, flags, 0, 0);
}

static inline int sys_dup(int from, int to)
{
	return (int)sys4(SYS_DUP3, from, to, 0, 0);
}

/* Returns 0 in the child. */
static inline int sys_fork(void)
{
	return (int)sys4(SYS_CLONE, SIGCHLD, 0, 0, 0);
}

static inline int sys_kill(int pid, int signal)
{
	return (int)sys4(SYS_KILL, pid, signal, 0, 0);
}

/* Reaps a child that has ended, if there is one, and returns its process ID. */
static inline int sys_reap(int *status)
{
	return (int)sys4(SYS_WAIT4, -1, (long)status, WNOHANG, 0);
}

static inline int sys_signal_mask(int how, const signal_set *set, signal_set *before)
{
	return (int)sys4(SYS_RT_SIGPROCMASK, how, (long)set, (long)before, sizeof *set);
}

/* Waits for a blocked signal and returns it; -EAGAIN after the timeout. */
static inline int sys_signal_wait(const signal_set *set, long seconds)
{
	long timeout[2] = {seconds, 0};
	return (int)sys4(SYS_RT_SIGTIMEDWAIT, (long)set, 0, (long)timeout, sizeof *set);
}

__attribute__((noreturn)) static void sys_exit(int code)
{
	for (;;)
		sys4(SYS_EXIT_GROUP, code, 0, 0, 0);
}

/* GCC compiles some assignments and loops to calls of these functions. */
void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	uint8_t *t = to;
	const uint8_t *f = from;
	while (size--)
		*t++ = *f++;
	return to;
}

void *memset(void *to, int value, size_t size)
{
	uint8_t *t = to;
	while (size--)
		*t++ = (uint8_t)value;
	return to;
}
