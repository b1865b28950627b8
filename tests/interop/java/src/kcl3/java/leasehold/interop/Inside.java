package leasehold.interop;

import java.lang.reflect.Field;

/** What can only be reached by reflection: settings of newer versions, and timers that the KCL does not let us set. */
final class Inside {
    private Inside() {}

    static boolean has(Object holder, String name) {
        for (Field field : holder.getClass().getDeclaredFields()) {
            if (field.getName().equals(name)) {
                return true;
            }
        }
        return false;
    }

    static Object get(Object holder, String name) {
        try {
            return field(holder, name).get(holder);
        } catch (ReflectiveOperationException absent) {
            throw missing(holder, name, absent);
        }
    }

    static void set(Object holder, String name, Object value) {
        try {
            field(holder, name).set(holder, value);
        } catch (ReflectiveOperationException absent) {
            throw missing(holder, name, absent);
        }
    }

    static Class<?> typeOf(Object config, String getter) {
        try {
            return config.getClass().getMethod(getter).getReturnType();
        } catch (ReflectiveOperationException absent) {
            throw missing(config, getter, absent);
        }
    }

    static void call(Object config, String setter, Class<?> type, Object value) {
        try {
            config.getClass().getMethod(setter, type).invoke(config, value);
        } catch (ReflectiveOperationException absent) {
            throw missing(config, setter, absent);
        }
    }

    /** Calls a setter where there is one. */
    static void tell(Object config, String setter, Class<?> type, Object value) {
        for (java.lang.reflect.Method method : config.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                call(config, setter, type, value);
            }
        }
    }

    private static Field field(Object holder, String name) throws NoSuchFieldException {
        Field field = holder.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static IllegalArgumentException missing(Object holder, String name, Exception why) {
        return new IllegalArgumentException("this KCL has no " + name + " in " + holder.getClass(), why);
    }
}
