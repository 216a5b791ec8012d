/* For user-mode-linux on processors with more state than it knows (AMX), loaded into it by tools/nfs_hosts.py.
 *
 * It saves and restores the registers of its processes with ptrace, in a buffer of the size of AVX-512's state. The
 * host's kernel reads as much of it as there is room for, but takes nothing back that is not whole, and the first process
 * ends in a panic. So what is given back is laid over what is there: beyond AVX-512 there are only the tiles of AMX, which
 * no program has that did not ask the kernel for them, and inside nobody can.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define XSTATE 0x202 /* NT_X86_XSTATE */

typedef long (*ptrace_call)(int, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_call call;
    static char whole[65536];
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (call == NULL)
        call = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || (long)address != XSTATE)
        return call(request, pid, address, data);
    struct iovec *given = data, all = {whole, sizeof whole};
    if (call(PTRACE_GETREGSET, pid, address, &all) != 0 || all.iov_len <= given->iov_len)
        return call(request, pid, address, data);
    memcpy(whole, given->iov_base, given->iov_len);
    return call(request, pid, address, &all);
}
